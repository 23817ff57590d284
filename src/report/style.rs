//! How charts look, on a page and in a file of their own: light or dark as the reader's system is.

/// Colours are Okabe and Ito's for all kinds of colour vision, some of them lighter or darker to stand out.
pub const COLORS: &str = "
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #1d1f21; --soft: #5c6066; --rule: #d8d9d4; --panel: #f4f4f0;
  --c0: #0068a8; --c1: #c04a00; --c2: #007a5a; --c3: #a8467f; --c9: #6b6f75; --on: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --ink: #e7e8e6; --soft: #a4a9af; --rule: #363a40;
  --panel: #1e2125; --c0: #5bb8ee; --c1: #f0913c; --c2: #3fc9a0; --c3: #e294c0; --c9: #9aa0a8; --on: #111315; } }
";

/// What charts are made of.
pub const MARKS: &str = "svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .group, svg .tick { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
svg .axis { fill: var(--ink); } svg .group { fill: var(--ink); font-weight: 600; } svg .name { font-weight: 600; }
.grid { stroke: var(--rule); stroke-width: 1; } .axisline { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 2; } .thin { stroke-width: 1.4; } .dashed { stroke-dasharray: 6 4; }
.leader { stroke-width: 1; opacity: .55; } .span { stroke-width: 2; }
.mark { stroke: var(--page); stroke-width: 1; } .piece { stroke: var(--page); stroke-width: .5; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); } .c3 { stroke: var(--c3); }
.c9 { stroke: var(--c9); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); } .f9 { fill: var(--c9); }
svg .t0, .k0 { fill: var(--c0); color: var(--c0); } svg .t1, .k1 { fill: var(--c1); color: var(--c1); }
svg .t2, .k2 { fill: var(--c2); color: var(--c2); } svg .t3, .k3 { fill: var(--c3); color: var(--c3); }
svg .t9, .k9 { fill: var(--c9); color: var(--c9); }
.k0, .k1, .k2, .k3, .k9 { font-weight: 600; }
svg .inside { fill: var(--on); font-size: 11.5px; font-weight: 600; }
";
