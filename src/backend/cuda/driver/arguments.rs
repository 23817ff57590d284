//! What a kernel is launched with, by value: numbers, tensor maps, and structs that the kernel's family declares once for both
//! sides (`kernels/*/args.h`).
//!
//! The order and types of a kernel's parameters are known to its compiler alone; of the build's table we know how many bytes all of
//! them take, and arguments of another size are refused.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::image;
use crate::backend::cuda::driver::tensor_map::{Boxes, TensorMap};
use crate::error::{Error, Result};
use bytemuck::NoUninit;
use std::ffi::c_void;

/// One argument of a kernel, by value.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    Address(Address),
    U32(u32),
    U64(u64),
    F32(f32),
    /// A tensor map of these boxes (`TensorMap` of kernels/common/wgmma.cuh).
    Boxes(Boxes),
    Struct(Struct),
}

impl Argument {
    /// A struct of a family's args.h.
    pub fn of<T: NoUninit>(value: &T) -> Self {
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        let mut words = vec![0u64; size_of::<T>().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..size_of::<T>()]
            .copy_from_slice(bytemuck::bytes_of(value));
        Self::Struct(Struct {
            words: words.into(),
            bytes: size_of::<T>(),
            align: align_of::<T>(),
        })
    }

    /// Size and alignment as a kernel's parameter.
    fn layout(&self) -> (usize, usize) {
        match self {
            Self::Address(_) | Self::U64(_) => (8, 8),
            Self::U32(_) | Self::F32(_) => (4, 4),
            Self::Boxes(_) => (128, 128),
            Self::Struct(found) => (found.bytes, found.align),
        }
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Self {
        Self::U64(value)
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<Boxes> for Argument {
    fn from(boxes: Boxes) -> Self {
        Self::Boxes(boxes)
    }
}

impl<T: NoUninit> From<&T> for Argument {
    fn from(value: &T) -> Self {
        Self::of(value)
    }
}

/// A kernel's arguments by value: each an address, a number, a tensor in boxes, or a reference to a struct of a family's args.h.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::backend::cuda::driver::arguments::Argument::from($value)),*]
    };
}
pub(crate) use arguments;

/// The bytes of a struct, aligned as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struct {
    words: Box<[u64]>,
    bytes: usize,
    align: usize,
}

/// An argument as a kernel takes it.
#[derive(Debug, Clone)]
pub(super) enum Value {
    U32(u32),
    U64(u64),
    F32(f32),
    TensorMap(TensorMap),
    Struct(Struct),
}

impl Value {
    fn of(argument: &Argument) -> Result<Self> {
        Ok(match argument {
            Argument::Address(value) | Argument::U64(value) => Self::U64(*value),
            Argument::U32(value) => Self::U32(*value),
            Argument::F32(value) => Self::F32(*value),
            Argument::Boxes(boxes) => Self::TensorMap(TensorMap::new(boxes)?),
            Argument::Struct(value) => Self::Struct(value.clone()),
        })
    }

    fn as_ptr(&self) -> *mut c_void {
        match self {
            Self::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Self::TensorMap(map) => std::ptr::from_ref(&map.0).cast_mut().cast(),
            Self::Struct(value) => value.words.as_ptr().cast_mut().cast(),
        }
    }

    /// Pointers to `values` for the driver, valid while these stay where they are.
    pub(super) fn pointers(values: &[Self]) -> Vec<*mut c_void> {
        values.iter().map(Self::as_ptr).collect()
    }
}

/// Arguments as the kernel of this name takes them.
///
/// # Errors
/// [`check`]'s, or the driver refuses the shape of a tensor map.
pub(super) fn values(kernel: &str, arguments: &[Argument]) -> Result<Vec<Value>> {
    check(kernel, arguments)?;
    arguments.iter().map(Value::of).collect()
}

/// Whether arguments are of the size that the kernel of this name takes.
///
/// # Errors
/// They are not, or this build has no such kernel: both are bugs.
pub fn check(kernel: &str, arguments: &[Argument]) -> Result<()> {
    let (found, expected) = (bytes_of(arguments), image::argument_bytes(kernel)?);
    if found != expected as usize {
        return Err(Error::Runtime(format!(
            "launching {kernel}: its arguments have {found} bytes, expected {expected}: this is a bug in tailgraph"
        )));
    }
    Ok(())
}

/// From the first one's start to the last one's end, each aligned as its type wants.
fn bytes_of(arguments: &[Argument]) -> usize {
    arguments.iter().fold(0, |end, argument| {
        let (bytes, align) = argument.layout();
        usize::next_multiple_of(end, align) + bytes
    })
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::model::WeightFormat;

    #[derive(Clone, Copy, NoUninit)]
    #[repr(C)]
    struct Three {
        address: Address,
        rows: u32,
        eps: f32,
    }

    const THREE: Three = Three {
        address: 0x0102_0304_0506_0708,
        rows: 7,
        eps: 1.0,
    };

    #[test]
    fn a_struct_is_passed_as_its_bytes() {
        let value = Value::of(&Argument::of(&THREE)).unwrap();
        // SAFETY: the value holds as many bytes, aligned for 64-bit words.
        let found = unsafe { value.as_ptr().cast::<[u32; 4]>().read() };
        assert_eq!(found, [0x0506_0708, 0x0102_0304, 7, 1.0f32.to_bits()]);
    }

    #[test]
    fn arguments_lie_where_their_types_allow() {
        let (number, address) = (Argument::U32(1), Argument::Address(2));
        let boxes = Boxes {
            at: 0,
            format: WeightFormat::BF16,
            sizes: vec![],
            strides: vec![],
            each: vec![],
        };
        assert_eq!(bytes_of(&[]), 0);
        assert_eq!(bytes_of(&[address.clone(), number.clone()]), 12);
        assert_eq!(bytes_of(&[number.clone(), address, number.clone()]), 20);
        assert_eq!(bytes_of(&[number.clone(), Argument::of(&THREE)]), 24);
        let maps = [
            Argument::Boxes(boxes.clone()),
            number,
            Argument::Boxes(boxes),
        ];
        assert_eq!(bytes_of(&maps), 384);
    }

    #[test]
    fn arguments_of_another_size_are_refused() {
        let mut arguments = vec![Argument::Address(0); 4];
        arguments.extend([Argument::U32(0), Argument::U32(0), Argument::U32(0)]);
        check("tg_query_tiles", &arguments).unwrap();
        arguments.push(Argument::U32(0));
        let error = check("tg_query_tiles", &arguments).unwrap_err();
        assert!(
            error.to_string().contains("48 bytes, expected 44"),
            "{error}"
        );
        let error = check("tg_nothing", &[]).unwrap_err();
        assert!(error.to_string().contains("tg_nothing"), "{error}");
    }
}
