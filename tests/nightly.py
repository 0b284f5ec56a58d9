"""Whether all cases of the tests run, or a part of those that take long."""

import os

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
