"""Server families' forms of the abstract record: bindings between their wire shapes and ours."""
