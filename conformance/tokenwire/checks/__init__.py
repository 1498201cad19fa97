"""The checks of the requirements. Each file contains the checks of one chapter of the specification, or of
one relation between answers.

Importing this package fills `tokenwire.checks.check.CHECKS`, including the checks of extensions.
"""

import importlib
import pkgutil

from tokenwire.spec_files import extensions

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

for _extension in extensions():
    _extension.load()
