from hypothesis import settings

# no deadline: the first example of a test may compile
settings.register_profile("kernels", deadline=None, max_examples=50)
settings.load_profile("kernels")
