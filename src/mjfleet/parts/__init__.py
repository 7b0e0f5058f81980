"""Parts for composing tasks: `from mjfleet.parts import Contacts, Motion, vary`."""

from mjfleet.parts.camera import Camera, add_camera
from mjfleet.parts.contacts import Contacts, add_contacts
from mjfleet.parts.depth_noise import blurred_edges, gaussian_depth, holes
from mjfleet.parts.motion import Motion
from mjfleet.parts.rays import HeightScan, Rays, grid, lidar
from mjfleet.parts.variation import vary

__all__ = [
    "Camera",
    "Contacts",
    "HeightScan",
    "Motion",
    "Rays",
    "add_camera",
    "add_contacts",
    "blurred_edges",
    "gaussian_depth",
    "grid",
    "holes",
    "lidar",
    "vary",
]
