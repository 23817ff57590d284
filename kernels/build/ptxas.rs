//! What the kernels take: registers, shared memory and arguments as nvlink's `-v` gives them, spills as ptxas's does.
//!
//! Only nvlink knows shared memory under `-rdc=true` (it lays it out), and only ptxas knows spills.

use std::collections::BTreeMap;
use std::fmt::Write;

/// One function on one architecture: a kernel, or a device function that was not inlined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    pub registers: u32,
    /// Static shared memory of one block, the 1 KiB that the driver keeps from sm_90 on included.
    pub shared_bytes: u32,
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    /// Of a kernel, on some architectures: constant bank 0, where its arguments are the last.
    pub bank_bytes: Option<u32>,
}

impl Usage {
    pub fn spills(&self) -> bool {
        self.spill_store_bytes + self.spill_load_bytes > 0
    }
}

/// By (function, architecture), the latter as in `sm_90a`.
pub type Table = BTreeMap<(String, String), Usage>;

/// Reads both tools' output. Errors name the line that is not as expected: a table with holes would let a
/// spill through.
pub fn parse(ptxas: &str, nvlink: &str) -> Result<Table, String> {
    let mut table = linked(nvlink)?;
    for (key, spilled) in compiled(ptxas)? {
        // A function that was inlined wherever it is called is not linked, but its spill is still one.
        let usage = table.entry(key).or_default();
        usage.stack_bytes = usage.stack_bytes.max(spilled.stack_bytes);
        usage.spill_store_bytes = spilled.spill_store_bytes;
        usage.spill_load_bytes = spilled.spill_load_bytes;
    }
    Ok(table)
}

/// ptxas: stack and spills, in the line after `Function properties for NAME`. Each unit and architecture
/// begins with a line on gmem; which architecture it is, only its kernels say, and a device function may
/// come before them.
fn compiled(log: &str) -> Result<Table, String> {
    let mut table = Table::new();
    let mut part: Vec<(String, Usage)> = Vec::new();
    let mut arch: Option<String> = None;
    let mut lines = log.lines();
    loop {
        let line = lines.next();
        if line.is_none_or(|line| line.contains(" bytes gmem")) && !part.is_empty() {
            let arch = arch.take().ok_or_else(|| unexpected("no kernel"))?;
            table.extend(
                part.drain(..)
                    .map(|(name, usage)| ((name, arch.clone()), usage)),
            );
        }
        let Some(line) = line else { return Ok(table) };
        if line.contains("Compiling entry function") {
            let of = line.split('\'').nth(3).ok_or_else(|| unexpected(line))?;
            if arch.as_deref().is_some_and(|arch| arch != of) {
                return Err(unexpected(line));
            }
            arch = Some(of.to_owned());
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            let counts = lines.next().unwrap_or_default();
            let amount = |what| number_before(counts, what).ok_or_else(|| unexpected(counts));
            let usage = Usage {
                stack_bytes: amount(" bytes stack frame")?,
                spill_store_bytes: amount(" bytes spill stores")?,
                spill_load_bytes: amount(" bytes spill loads")?,
                ..Usage::default()
            };
            part.push((name.trim().to_owned(), usage));
        }
    }
}

/// nvlink: `Function properties for 'NAME': (target: sm_N)`, then a line of counts.
fn linked(log: &str) -> Result<Table, String> {
    let mut table = Table::new();
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        let Some((_, rest)) = line.split_once("Function properties for '") else {
            continue;
        };
        let (name, rest) = rest.split_once('\'').ok_or_else(|| unexpected(line))?;
        let arch = rest
            .split_once("target: ")
            .and_then(|(_, arch)| arch.split(')').next())
            .ok_or_else(|| unexpected(line))?;
        let counts = lines.next().unwrap_or_default();
        let amount = |what| number_before(counts, what).ok_or_else(|| unexpected(counts));
        let usage = Usage {
            registers: amount(" registers")?,
            // Left out where it is 0.
            stack_bytes: number_before(counts, " stack").unwrap_or(0),
            shared_bytes: number_before(counts, " bytes smem").unwrap_or(0),
            bank_bytes: number_before(counts, " bytes cmem[0]"),
            ..Usage::default()
        };
        table.insert((name.to_owned(), arch.to_owned()), usage);
    }
    Ok(table)
}

/// Where arguments may begin in constant bank 0, behind what the driver keeps there for every launch; of architectures for which
/// nvlink tells the bank's size.
const ARGUMENTS_FROM: [(&str, u32); 2] = [("sm_80", 0x160), ("sm_90a", 0x210)];
/// They begin at a multiple of what the most demanding of them is aligned to: numbers, or tensor maps.
const ALIGNMENTS: [u32; 2] = [16, 128];

/// Bytes of all of a kernel's arguments, by its name. Errors name a kernel for which the architectures do not agree.
pub fn argument_bytes(table: &Table) -> Result<BTreeMap<String, u32>, String> {
    let mut banks = BTreeMap::<&str, Vec<(u32, u32)>>::new();
    for ((name, arch), usage) in table {
        let from = ARGUMENTS_FROM.iter().find(|(of, _)| of == arch);
        if let (Some(until), Some((_, from))) = (usage.bank_bytes, from) {
            banks.entry(name).or_default().push((*from, until));
        }
    }
    let bytes_of = |name: &str, banks: &[(u32, u32)]| {
        let agreed = ALIGNMENTS.iter().find_map(|align| {
            let mut bytes = (banks.iter())
                .map(|(from, until)| until.checked_sub(from.next_multiple_of(*align)));
            let first = bytes.next()??;
            bytes.all(|other| other == Some(first)).then_some(first)
        });
        agreed.ok_or_else(|| format!("{name}: its arguments end in constant bank 0 where no one size of them does, (from, until) {banks:?}"))
    };
    banks
        .into_iter()
        .map(|(name, banks)| Ok((name.to_owned(), bytes_of(name, &banks)?)))
        .collect()
}

/// By kernel, as the library reads them.
pub fn arguments_to_json(bytes: &BTreeMap<String, u32>) -> String {
    let lines: Vec<String> = bytes
        .iter()
        .map(|(name, bytes)| format!("  \"{name}\": {bytes}"))
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

/// The number that stands before `what`.
fn number_before(line: &str, what: &str) -> Option<u32> {
    let (before, _) = line.split_once(what)?;
    before.rsplit([' ', ',']).next()?.parse().ok()
}

fn unexpected(line: &str) -> String {
    format!("ptxas or nvlink printed {line:?}, which is not what CUDA 13.0's do")
}

/// The table as JSON: an array of objects, by function and architecture.
pub fn to_json(table: &Table) -> String {
    let mut json = String::from("[");
    for (index, ((name, arch), usage)) in table.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Names are C identifiers: nothing to escape.
        write!(
            json,
            "{comma}\n  {{\"name\": \"{name}\", \"arch\": \"{arch}\", \"registers\": {}, \"shared_bytes\": {}, \
             \"stack_bytes\": {}, \"spill_store_bytes\": {}, \"spill_load_bytes\": {}}}",
            usage.registers,
            usage.shared_bytes,
            usage.stack_bytes,
            usage.spill_store_bytes,
            usage.spill_load_bytes
        )
        .expect("writing to a String cannot fail");
    }
    json + "\n]\n"
}
