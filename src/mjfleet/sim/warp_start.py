"""Starts warp without its messages, and hands it a model. Runs in a worker."""

import os
import sys

import mujoco
import mujoco_warp as mjw
import warp as wp

from mjfleet.errors import UserError
from mjfleet.utils.console import in_a_line


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


def put_model(model: mujoco.MjModel, device: str) -> mjw.Model:
    """Return the model on warp's current device, which is `device`.

    Raises:
        UserError: the model uses something that MuJoCo-Warp lacks.
    """
    try:
        return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        lacks = in_a_line(error).rstrip(".")
        flags = "--engine native" if device == "cpu" else "--gpu-ids None --engine native"
        raise UserError(
            f"MuJoCo-Warp cannot simulate this model: {lacks}. MuJoCo's own engine can: {flags}"
        ) from None
