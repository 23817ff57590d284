//! The layers behind the last attention, for the rows alone that are needed: listed, gathered, and from there on a step like any other.

use super::{ModelAddresses, lower_rows};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::needed::{Gathered, Listed};
use crate::error::Result;
use crate::plan::{NeededRows, Op, OpKind};

/// Rows are gathered where `ops` begin with the last attention. A stage behind that finds them gathered, and one that ends before the
/// head leaves them where the next looks.
pub(super) fn lower(
    model: &ModelAddresses,
    needed: NeededRows,
    ops: &[Op],
    to: &mut Lowering<'_>,
) -> Result<()> {
    let places = &model.places;
    let listed = Listed {
        step: model.at(places.needed_step),
        rows: model.at(places.needed_rows),
        from: model.at(places.needed_from),
        sequences: model.at(places.needed_sequences),
        samples: model.at(places.needed_samples),
    };
    to.doing(&ops[..1]);
    to.list_needed_rows(&listed, needed)?;
    if ops[0].kind != OpKind::Attention {
        return lower_rows(model, ops, to);
    }
    let (h, qkv) = (model.at(places.needed_h), model.at(places.needed_qkv));
    to.gather_rows(&Gathered {
        from: Some(listed.from),
        h: (h, model.h()),
        qkv: Some((qkv, model.wide())),
    });
    let gathered = ModelAddresses {
        moved_h: Some(h),
        moved_q: Some(qkv),
        ..model.clone()
    };
    lower_rows(&gathered, ops, to)?;
    if ops.last().is_some_and(|op| op.kind != OpKind::Sample) {
        to.gather_rows(&Gathered {
            from: None,
            h: (model.h(), h),
            qkv: None,
        });
    }
    Ok(())
}
