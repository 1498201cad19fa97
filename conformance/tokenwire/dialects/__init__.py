"""How server families write the abstract record: bindings between their wire shapes and ours."""
