"""Either kind of model that the engine runs: one of transformers, or a script."""

from __future__ import annotations

from tokenwire_reference.core.loaded_model import LoadedModel
from tokenwire_reference.extras.scripted import ScriptedModel

Model = LoadedModel | ScriptedModel
