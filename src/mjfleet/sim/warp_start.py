"""Starts warp, which steps the physics on GPUs. Runs in a worker."""

import os
import sys

import warp as wp


def start_warp(device: str) -> None:
    """Start warp without its banner and without a line for each kernel that it loads.

    On the CPU, its C++ code would print to stderr that there is no GPU driver.
    """
    wp.config.log_level = wp.LOG_WARNING
    if device != "cpu":
        wp.init()
        return
    sys.stderr.flush()
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        wp.init()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
