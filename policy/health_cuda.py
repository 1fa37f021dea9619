"""CUDA kernels around the scalar functions of `policy.health_kernels`, of one thread each. Import only where CUDA is wanted."""

import lob.jit
from policy.health_kernels import settle, take_step, take_update

cuda = lob.jit.cuda()


@cuda.jit
def observe_step(counts, bus, clock, picks, params):
    if cuda.grid(1) == 0:
        take_step(counts, bus, clock, picks, params)


@cuda.jit
def observe_update(measured, has_gate, bus, clock):
    if cuda.grid(1) == 0:
        take_update(measured, has_gate, bus, clock)


@cuda.jit
def update_controls(bus, clock, picks, params, drives, health_ppm):
    if cuda.grid(1) == 0:
        settle(bus, clock, picks, params, drives, health_ppm)
