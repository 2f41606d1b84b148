//! Embedding tables on SSD: rows looked up by number, in bags that are added up.

#![forbid(unsafe_code)]
