"""A loop without any framework that speaks to watchdog_train itself.

Outside of `wtrain run` every one of these calls does nothing, so they can stay in the script.

    wtrain run -- python examples/explicit_api.py
"""

import json
import math
import os
import time

import watchdog_train as wt

STEPS = 100
STATE = "explicit-state.json"


def load_state():
    """From the checkpoint that wtrain has chosen, else from the newest file of our own."""
    path = wt.resume_path() or STATE
    if not os.path.exists(path):
        return {"step": 0, "value": 0.0}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def save_state(state):
    with open(STATE + ".new", "w", encoding="utf-8") as file:
        json.dump(state, file)
    os.replace(STATE + ".new", STATE)


def main():
    state = load_state()
    print(f"attempt {wt.attempt()}, going on from step {state['step']}", flush=True)
    wt.mark("data-ready")
    while state["step"] < STEPS and not wt.should_stop():
        time.sleep(0.02)
        state["step"] += 1
        state["value"] += math.sin(state["step"])
        wt.beat(step=state["step"], total_steps=STEPS)
        if state["step"] % 25 == 0:
            with wt.phase("checkpoint"):
                save_state(state)
    wt.expect(60)  # what follows may be silent for a minute
    save_state(state)
    print(f"finished step={state['step']} value={state['value']:.6f}", flush=True)


if __name__ == "__main__":
    main()
