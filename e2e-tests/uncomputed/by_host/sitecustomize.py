"""Each process of Python that has this folder on its path computes by the host; see by_host.py."""

import importlib

importlib.import_module("by_host").enter()  # beside this file, which is in no package
