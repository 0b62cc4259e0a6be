"""The package in new environments: each Python that it is for, newest and lowest dependencies."""
