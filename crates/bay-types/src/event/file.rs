use super::area::area;

area! {
    /// Files that clients write.
    File: FileEvent;

    /// A client is about to write a file, or to unpack an archive.
    Write(FileWrite) = "file.write" {
        /// The file, or the directory that the archive is unpacked in.
        path: String,
        /// Whether it is an archive.
        archive: bool,
        /// The work in the bay begins with these files: comparisons do not show them as changes. Otherwise absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        beginning: Option<bool>,
        /// Who asked.
        by: String,
    }
}
