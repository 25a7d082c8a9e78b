"""One module per library; a hook is its arm(), or the function named in libraries.py."""
