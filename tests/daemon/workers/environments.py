"""Build environments of workers from a few changes."""

from sidecar.daemon.workers.environment import worker_environment
from sidecar.evaluation.framework_traits import OURS, FrameworkTraits, traits_of


def made(base=None, changes=None, devices="-1", hosts=("10.0.0.7",), framework="tensorflow"):
    traits = traits_of(framework) if framework in OURS else FrameworkTraits(name=framework)
    return worker_environment(base or {}, traits=traits, devices=devices, hosts=hosts, changes=changes or {})
