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
        /// Who asked.
        by: String,
    }
}
