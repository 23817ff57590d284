//! The numbers that kernels leave for their launchers (`LAUNCH_CONSTANTS` of kernels/common/launch.cuh), read from the host's
//! half of the object files.

use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Names of such arrays end so.
const SUFFIX: &str = "_tile";

/// By name.
pub fn read(objects: &[PathBuf]) -> Result<BTreeMap<String, Vec<u32>>, String> {
    let mut found = BTreeMap::new();
    for path in objects {
        of(path, &mut found).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(found)
}

fn of(path: &Path, found: &mut BTreeMap<String, Vec<u32>>) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let file = object::File::parse(&*bytes).map_err(|error| error.to_string())?;
    let symbols = file.symbols().filter(|symbol| symbol.is_definition());
    for symbol in symbols {
        let name = symbol.name().map_err(|error| error.to_string())?;
        if !name.starts_with("tg_") || !name.ends_with(SUFFIX) {
            continue;
        }
        let section = symbol
            .section_index()
            .and_then(|index| file.section_by_index(index).ok())
            .ok_or_else(|| format!("{name} lies in no section"))?;
        let data = section
            .data_range(symbol.address(), symbol.size())
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("{name} has no data"))?;
        let words = data.chunks_exact(4);
        let words = words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
        found.insert(name.to_owned(), words.collect());
    }
    Ok(())
}

/// As the library reads them.
pub fn to_json(constants: &BTreeMap<String, Vec<u32>>) -> String {
    let lines: Vec<String> = constants
        .iter()
        .map(|(name, values)| format!("  \"{name}\": {values:?}"))
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}
