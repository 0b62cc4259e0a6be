import numba
from hypothesis import settings

# No deadline: the first example of a test may compile. Without compilation the lines that run are
# counted, which must not depend on the day's examples.
settings.register_profile(
    "kernels", deadline=None, max_examples=50, derandomize=bool(numba.config.DISABLE_JIT)
)
settings.load_profile("kernels")
