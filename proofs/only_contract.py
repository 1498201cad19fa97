"""A contract for import-linter: packages may import only the listed modules of another package."""

from __future__ import annotations

import grimp
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """Check direct imports, and check that each listed module exists and is imported.

    source_modules: the packages whose imports are checked.
    package: the package from which they import modules.
    allowed_modules: the modules of this package that they may import.
    """

    type_name = "only"

    source_modules = fields.ListField(subfield=fields.StringField())
    package = fields.StringField()
    allowed_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        allowed: set[str] = set(self.allowed_modules)  # type: ignore[call-overload]
        imports = [
            (importer, imported)
            for source in self.source_modules  # type: ignore[attr-defined]
            for importer in sorted({source, *graph.find_descendants(source)})
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if f"{imported}.".startswith(f"{self.package}.")
        ]
        broken = [
            f"{importer} imports {imported}" for importer, imported in imports if imported not in allowed
        ]
        unused = sorted(allowed - {imported for _, imported in imports})
        broken += [f"{module} is listed, but no tool imports it" for module in unused]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)
        output.new_line()
        output.print(
            "Import a listed module, or add the new module to the list. Then other tools may import it too."
        )
