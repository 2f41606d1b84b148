//! File names of the parts of a sparse matrix in its folder.

/// The description.
pub const DESCRIPTION: &str = "matrix.json";
/// Where the entries of each line begin.
pub const OFFSETS: &str = "indptr.npy";
/// The minor index of each entry.
pub const INDICES: &str = "indices.npy";
/// The value of each entry.
pub const VALUES: &str = "data.npy";
pub(crate) const TILES: &str = "tiles.npy";
pub(crate) const ENTRIES: &str = "tiles.bin";
/// Beside it, of what was imported.
pub const LABELS: &str = "labels.npy";
/// The query of each row.
pub const QUERIES: &str = "queries.npy";
/// A matrix of labels.
pub const LABEL_FOLDER: &str = "labels";
/// The word of each column.
pub const WORDS: &str = "vocabulary.txt";
/// The names of classes.
pub const CLASSES: &str = "classes.txt";
/// All of them.
pub const ALL: [&str; 11] = [
    DESCRIPTION,
    OFFSETS,
    INDICES,
    VALUES,
    TILES,
    ENTRIES,
    LABELS,
    QUERIES,
    LABEL_FOLDER,
    WORDS,
    CLASSES,
];
