from hypothesis import settings

# the first example of a test may compile
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
