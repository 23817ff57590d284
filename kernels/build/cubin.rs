//! What the kernels in a cubin take, and the numbers that they leave for their launchers: read from its ELF sections, which ptxas and
//! nvlink write alike for every architecture.

use crate::nvcc::Result;
use object::{File, Object, ObjectSection, ObjectSymbol, SymbolIndex};
use std::collections::BTreeMap;

/// What a kernel takes.
pub struct Kernel {
    pub name: String,
    pub registers: u32,
    pub argument_bytes: u32,
}

/// Names of the arrays that kernels leave (`LAUNCH_CONSTANTS` of kernels/common/launch.cuh) end so.
const CONSTANTS: &str = "_tile";

/// Attributes of `.nv.info` sections, as `cuobjdump -elf` names them.
/// Bytes up to the end of the last parameter; before the first there may be some that align it.
const EIATTR_CBANK_PARAM_SIZE: u8 = 0x19;
/// A parameter: its number and, in the upper half of the second word, where it begins.
const EIATTR_KPARAM_INFO: u8 = 0x17;
const EIATTR_REGCOUNT: u8 = 0x2f;
/// The format of an attribute whose value follows it; others have theirs in its last two bytes.
const EIFMT_SVAL: u8 = 4;

/// The kernels of ours in a cubin.
pub fn kernels(file: &File) -> Result<Vec<Kernel>> {
    let info = |name: &str| -> Result<_> {
        let section = file.section_by_name(name);
        let section = section.ok_or(format!("no section {name}"))?;
        Ok(attributes(section.data()?).ok_or(format!("section {name} is cut off"))?)
    };
    let mut kernels = vec![];
    for (attribute, value) in info(".nv.info")? {
        let (EIATTR_REGCOUNT, &[symbol, registers]) = (attribute, &value[..]) else {
            continue;
        };
        let symbol = file.symbol_by_index(SymbolIndex(symbol as usize))?;
        let name = symbol.name()?.to_owned();
        // The device runtime has kernels of its own.
        if !name.starts_with("tg_") {
            continue;
        }
        // A function that was not inlined has registers too, but no parameters in a constant bank.
        let (mut from, mut until) = (u32::MAX, None);
        for (attribute, value) in info(&format!(".nv.info.{name}"))? {
            match (attribute, &value[..]) {
                (EIATTR_CBANK_PARAM_SIZE, [bytes]) => until = Some(*bytes),
                (EIATTR_KPARAM_INFO, [_, ordinal_and_offset, _]) => {
                    from = from.min(ordinal_and_offset >> 16);
                }
                _ => {}
            }
        }
        if let Some(until) = until {
            kernels.push(Kernel {
                name,
                registers,
                argument_bytes: until.saturating_sub(from),
            });
        }
    }
    Ok(kernels)
}

/// Overwrites the PTX that `-lineinfo` keeps beside the machine code with zeros, which pack to nothing: it is half of a cubin, and the
/// driver unpacks all of that at each start. Source lines stay. The sections stay too, since taking them out would move the others.
pub fn clear_ptx(cubin: &mut [u8]) -> Result<()> {
    let file = File::parse(&*cubin)?;
    let sections = file.sections();
    let of_ptx = sections.filter(|section| {
        section
            .name()
            .is_ok_and(|name| name.starts_with(".nv_debug_ptx_txt"))
    });
    let ranges: Vec<_> = of_ptx.filter_map(|section| section.file_range()).collect();
    for (from, bytes) in ranges {
        cubin[from as usize..][..bytes as usize].fill(0);
    }
    Ok(())
}

/// The attributes of an `.nv.info` section and the words of each; `None` where one is cut off.
fn attributes(mut data: &[u8]) -> Option<Vec<(u8, Vec<u32>)>> {
    let mut found = vec![];
    while let [format, attribute, low, high, rest @ ..] = data {
        let value = u16::from_le_bytes([*low, *high]);
        let (words, rest) = if *format == EIFMT_SVAL {
            let (words, rest) = rest.split_at_checked(value.into())?;
            (words_of(words), rest)
        } else {
            (vec![value.into()], rest)
        };
        found.push((*attribute, words));
        data = rest;
    }
    data.is_empty().then_some(found)
}

/// The arrays of numbers in a cubin, by their names.
pub fn constants(file: &File) -> Result<BTreeMap<String, Vec<u32>>> {
    let mut found = BTreeMap::new();
    for symbol in file.symbols() {
        let name = symbol.name()?;
        if !name.starts_with("tg_") || !name.ends_with(CONSTANTS) {
            continue;
        }
        let section = symbol.section_index();
        let section = section.ok_or(format!("{name} lies in no section"))?;
        let section = file.section_by_index(section)?;
        let data = section.data_range(symbol.address(), symbol.size())?;
        let data = data.ok_or(format!("{name} has no data"))?;
        found.insert(name.to_owned(), words_of(data));
    }
    Ok(found)
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
