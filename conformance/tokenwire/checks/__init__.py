"""The checks: one for each requirement, in a file for each chapter or for each kind of relation between
answers.

Importing this package fills `tokenwire.checks.check.CHECKS`, including the checks of extensions.
"""

import importlib
import pkgutil

from tokenwire.spec_files import extensions

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

for _extension in extensions():
    _extension.load()
