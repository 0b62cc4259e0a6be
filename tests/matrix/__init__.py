"""Tests in new environments: every supported Python, newest and lowest dependencies."""
