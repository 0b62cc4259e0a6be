"""A preload for Dask's processes: who computes a chunk or makes a step says more than it may."""

import logging

from largek_dask import fault_injection

SECRET = "open-sesame-4711"
SHOUT = f"two\nlines \x1b[31m\x7f\u2028 with {SECRET}"
SAID_AT = {"chunk", "step"}


def shout(when, point):
    if when == "before" and point in SAID_AT:
        logging.getLogger("somebody.elses").warning("%s at %s", SHOUT, point)


fault_injection.watch(shout)
