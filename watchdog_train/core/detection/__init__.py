"""How silent a tree is and what that is worth: samples and settings in, a verdict out.

Knows neither the state of the run nor what will be done about a stall.
"""
