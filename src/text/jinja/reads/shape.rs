//! What a value in a template may be, as far as messages and their contents go.

/// A message, its content, or a part of a content that is a list of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Message,
    Content,
    Part,
}

const KINDS: [Kind; 3] = [Kind::Message, Kind::Content, Kind::Part];
/// Lists in lists that are told apart; a value in more of them counts as one in this many.
const DEPTHS: u32 = 4;

/// All that a value may be: for each kind and number of lists around it one bit. None for a value that holds no
/// message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shapes(u32);

impl Shapes {
    pub const NONE: Self = Self(0);

    /// A value of this kind itself.
    pub fn one(kind: Kind) -> Self {
        Self(1 << (kind as u32 * DEPTHS))
    }

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether it may be of this kind itself.
    pub fn is(self, kind: Kind) -> bool {
        self.0 & Self::one(kind).0 != 0
    }

    /// Whether it may be a list of this kind, or a list of such lists.
    pub fn is_list_of(self, kind: Kind) -> bool {
        self.0 & (0b1110 << (kind as u32 * DEPTHS)) != 0
    }

    /// Whether this kind is anywhere in it.
    pub fn holds(self, kind: Kind) -> bool {
        self.is(kind) || self.is_list_of(kind)
    }

    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// A list of it.
    pub fn in_a_list(self) -> Self {
        self.each(|bits| ((bits << 1) & 0b1111) | (bits & 0b1000))
    }

    /// An item of it: of a content it is a part.
    pub fn item(self) -> Self {
        let items = self.each(|bits| (bits >> 1) | (bits & 0b1000));
        match self.is(Kind::Content) {
            true => items.or(Self::one(Kind::Part)),
            false => items,
        }
    }

    fn each(self, change: impl Fn(u32) -> u32) -> Self {
        let changed = KINDS.iter().map(|&kind| {
            let place = kind as u32 * DEPTHS;
            change((self.0 >> place) & 0b1111) << place
        });
        Self(changed.fold(0, |all, bits| all | bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_items_undo_each_other() {
        let message = Shapes::one(Kind::Message);
        let list = message.in_a_list();
        assert!(list.is_list_of(Kind::Message) && !list.is(Kind::Message));
        assert_eq!(list.item(), message);
        assert_eq!(list.in_a_list().item(), list);
        assert!(message.item().is_none());
        assert_eq!(Shapes::one(Kind::Content).item(), Shapes::one(Kind::Part));
        let deep = (0..9).fold(message, |shapes, _| shapes.in_a_list());
        assert!(deep.is_list_of(Kind::Message) && deep.item().is_list_of(Kind::Message));
    }
}
