"""What MuJoCo-Warp computes of a new state: as little as has been read. Runs in a worker."""

from typing import Literal

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from mjfleet.sim.warp_kernels import clear_columns

Level = Literal["nothing", "motion", "forces"]

LIMIT_SENSORS = (
    mujoco.mjtSensor.mjSENS_JOINTLIMITPOS, mujoco.mjtSensor.mjSENS_JOINTLIMITVEL,
    mujoco.mjtSensor.mjSENS_TENDONLIMITPOS, mujoco.mjtSensor.mjSENS_TENDONLIMITVEL,
)  # fmt: skip
"""Those of positions and velocities, which have one value each."""
CONSTRAINT_SENSORS = {*LIMIT_SENSORS, mujoco.mjtSensor.mjSENS_E_KINETIC}
"""Those of positions and velocities that need constraints or the inertia matrix."""
COLLISION_SENSORS = {
    mujoco.mjtSensor.mjSENS_GEOMDIST, mujoco.mjtSensor.mjSENS_GEOMNORMAL,
    mujoco.mjtSensor.mjSENS_GEOMFROMTO, mujoco.mjtSensor.mjSENS_CONTACT,
    mujoco.mjtSensor.mjSENS_TACTILE,
}  # fmt: skip
FORCE_SENSORS = {mujoco.mjtSensor.mjSENS_ACTUATORVEL, mujoco.mjtSensor.mjSENS_TENDONVEL}
FORCE_FIELDS = {"actuator_velocity", "ten_velocity", "qfrc_bias", "qfrc_passive"}
"""What `mjw.fwd_velocity` computes beside the velocities of bodies; FORCE_SENSORS show it."""


class DerivedFields:
    """Computes what depends on positions and velocities. `mjw.step1` would clear all sensors.

    Contacts, constraints and inertia matrix are left out where no sensor needs them: they take
    most of the time, and the next step computes its own.
    """

    def __init__(self, model: mujoco.MjModel, on_device: mjw.Model, data: mjw.Data) -> None:
        """Take the model, also as it is on warp's current device."""
        self._model, self._data = on_device, data
        self.level: Level = "nothing"
        """The most that any field which has been read so far needs."""
        types, is_late = model.sensor_type, model.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC
        sensors = set(types[~is_late].tolist())
        self._limits = wp.array(model.sensor_adr[np.isin(types, LIMIT_SENSORS)], dtype=int)
        self._senses_collisions = not sensors.isdisjoint(COLLISION_SENSORS)
        self._needs_constraints = (
            not sensors.isdisjoint(CONSTRAINT_SENSORS)
            or model.opt.integrator == mjw.IntegratorType.DISCRETE
            or bool(model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP)
        )
        self._needs_forces = self._needs_constraints or not sensors.isdisjoint(FORCE_SENSORS)
        # Moments of adhesive actuators and forces of adhesive geoms follow from contacts.
        self._adheres = bool(on_device.nacttrnbody or on_device.flg_adhesion)

    def read(self, name: str) -> bool:
        """Note that a derived field is read; return whether more is to be computed than before."""
        before = self.level
        if self.level != "forces":
            self.level = "forces" if name in FORCE_FIELDS else "motion"
        return self.level != before

    def compute(self, level: Level) -> None:
        """Launch all that a level needs."""
        model, data = self._model, self._data
        if level == "nothing":
            return
        has_forces = level == "forces" or self._needs_forces
        if self._needs_constraints or (has_forces and self._adheres):
            mjw.fwd_position(model, data, factorize=False)
        else:
            mjw.fwd_kinematics(model, data)
            mjw.transmission(model, data)
            if self._senses_collisions:
                mjw.collision(model, data)
        if self._limits.size:  # MuJoCo-Warp writes their sensors only where a limit is active.
            wp.launch(clear_columns, data.nworld, [self._limits, data.sensordata])
        mjw.sensor_pos(model, data)
        if has_forces:
            mjw.fwd_velocity(model, data)
        else:
            mjw.com_vel(model, data)
        mjw.sensor_vel(model, data)
