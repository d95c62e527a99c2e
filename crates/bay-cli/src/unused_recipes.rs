//! Files that tell other tools how to make an environment. A bay does not read them, and `bay up` says so.

use std::path::Path;

/// Descriptions of an image or of a development environment, at the top of a repository.
const OF_AN_IMAGE: [&str; 5] = [
    ".devcontainer/devcontainer.json",
    ".devcontainer.json",
    "devcontainer.json",
    "Dockerfile",
    "Containerfile",
];
/// Descriptions of services.
const OF_SERVICES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"];

/// One line about the files of a directory that a bay from this image does not use. `None` if there are none.
pub(crate) fn note(directory: &Path, image: &str) -> Option<String> {
    let present = |names: &[&'static str]| -> Vec<&'static str> {
        names.iter().copied().filter(|name| directory.join(name).is_file()).collect()
    };
    let (mut names, services) = (present(&OF_AN_IMAGE), present(&OF_SERVICES));
    let mut instead = Vec::new();
    if !names.is_empty() {
        instead.push("`bay images import` takes another image");
    }
    if !services.is_empty() {
        instead.push("`bay services add` runs services");
    }
    names.extend(services);
    let (last, others) = names.split_last()?;
    let (files, are) = match others {
        [] => ((*last).to_owned(), "is"),
        others => (format!("{} and {last}", others.join(", ")), "are"),
    };
    let image = bay_text::escape::visible(image);
    Some(format!(
        "note: {files} {are} not used: the bay starts from the image {image}; {}",
        instead.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_a_bay_does_not_use_are_named_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(note(dir.path(), "host"), None);
        // A directory of that name describes nothing.
        std::fs::create_dir(dir.path().join("Containerfile")).unwrap();
        assert_eq!(note(dir.path(), "host"), None);
        std::fs::write(dir.path().join("Dockerfile"), "FROM x").unwrap();
        let one = note(dir.path(), "host").unwrap();
        assert!(one.starts_with("note: Dockerfile is not used: the bay starts from the image host"), "{one}");
        assert!(one.contains("images import") && !one.contains("services"), "{one}");
        std::fs::create_dir(dir.path().join(".devcontainer")).unwrap();
        std::fs::write(dir.path().join(".devcontainer/devcontainer.json"), "{}").unwrap();
        std::fs::write(dir.path().join("compose.yaml"), "").unwrap();
        let all = note(dir.path(), "odd\nname").unwrap();
        assert!(
            all.contains(".devcontainer/devcontainer.json, Dockerfile and compose.yaml are not used"),
            "{all}"
        );
        assert!(all.contains("services add") && all.lines().count() == 1, "{all}");
    }
}
