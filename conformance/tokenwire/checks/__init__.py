"""The checks: one for each requirement, a file for each chapter or for each kind of relation between answers.

Importing this package fills `tokenwire.checks.check.CHECKS`.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
