"""Block drafters (DFlash) in training: states in, blocks out.

Beside the draft models of the package above; needs PyTorch like them.
"""
