//! What config.json says of the rotary embedding: its base, and that it is neither scaled nor partial.

use crate::error::Result;
use crate::model::fields::Fields;
use crate::model::layer_types::LayerType;

/// The base of the rotary embedding, found as transformers does: a rope_scaling that says something stands in the place
/// of rope_parameters as a whole; then that object's rope_theta, else the file's own, else 1e6.
pub(in crate::model) fn theta(fields: &Fields<'_>) -> Result<f64> {
    let own = |fields: &Fields<'_>| {
        fields.number("rope_theta", "a finite number above 0", |theta| {
            theta > 0.0 && theta.is_finite()
        })
    };
    check_rotary_fraction(fields)?;
    let scaling = fields.object("rope_scaling")?;
    let parameters = fields.object("rope_parameters")?;
    // Both are checked, although only one is used: a file that speaks of scaling anywhere means it.
    for object in [&scaling, &parameters].into_iter().flatten() {
        check_rope_type(object)?;
        check_rotary_fraction(object)?;
    }
    let used = scaling.filter(|object| !object.is_empty()).or(parameters);
    let inner = match &used {
        Some(object) => own(object)?,
        None => None,
    };
    Ok(inner.or(own(fields)?).unwrap_or(1e6))
}

/// rope_type, or type as older files spell it, may be "default" alone: no scaling.
fn check_rope_type(object: &Fields<'_>) -> Result<()> {
    let spelled = ["rope_type", "type"].into_iter();
    if let Some((name, found)) = spelled
        .filter_map(|name| Some((name, object.get(name)?)))
        .next()
        && found != "default"
    {
        return Err(object.wrong(
            name,
            found,
            "\"default\": scaled rotary embeddings are not supported",
        ));
    }
    for layer_type in [LayerType::Conv, LayerType::FullAttention] {
        if let Some(found) = object.get(layer_type.name()) {
            return Err(object.wrong(
                layer_type.name(),
                found,
                "no parameters by type of layer: they are not supported",
            ));
        }
    }
    Ok(())
}

fn check_rotary_fraction(fields: &Fields<'_>) -> Result<()> {
    let name = "partial_rotary_factor";
    let expected = "1: rotary embeddings turn all of head_dim";
    fields
        .number(name, expected, |factor| factor == 1.0)
        .map(|_| ())
}
