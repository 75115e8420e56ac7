"""Find the packages: every folder of the five layers that has an `__init__.py`, installed under `latensor.`."""

from setuptools import find_packages, setup

LAYERS = ["base", "moments", "decompose", "models", "inference"]

setup(packages=[f"latensor.{name}" for name in find_packages(include=[*LAYERS, *(f"{layer}.*" for layer in LAYERS)])])
