//! cuBLAS, found and loaded at run time.
