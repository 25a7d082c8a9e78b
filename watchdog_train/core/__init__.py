"""ROOM 3: the pure core. Values in, values out; it imports no os, time, subprocess or psutil.

A poll of the supervisor goes through it in this order:

    model, events, policy   the nouns, the vocabulary of the log, the settings
    starting                the command line, its launcher, and which task or node we are
    detection               samples of the tree -> whether it has been silent for too long
    diagnosis               evidence and rules -> what is stuck and why
    fold                    events -> the state of the run
    notices                 what is worth saying without doing anything
    decide, suspect         observation and state -> one action (actions.py)
      requests              ... asking the training to save or to end
      recovery              ... ending the tree, choosing checkpoint and settings, giving up
      job                   ... the same together with the tasks and nodes of the job
    traces                  recorded samples, judged again under their own clock

tests/core/test_layering.py says which of these may import which.
"""
