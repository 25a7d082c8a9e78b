"""What runs inside the training process; it must never raise, block, print or change a result."""
