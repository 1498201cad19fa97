"""The wire forms of server families: bindings between their wire shapes and the abstract record."""
