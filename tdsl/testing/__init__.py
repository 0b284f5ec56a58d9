"""`td.testing`: for tests of programs and schedules, inputs, reference results and the bounds of rounding."""

from tdsl.errors import checked_call, module_getattr
from tdsl.testing.inputs import inputs, random_inputs
from tdsl.testing.reference import assert_matches, interpret, tolerance

__all__ = ["assert_matches", "inputs", "interpret", "random_inputs", "tolerance"]

for _name in {*__all__} - {"assert_matches"}:  # whose AssertionError is no fault of tdsl
    globals()[_name] = checked_call(globals()[_name])
__getattr__ = module_getattr("tdsl.testing", __all__)


def __dir__() -> list[str]:
    return [*__all__]
