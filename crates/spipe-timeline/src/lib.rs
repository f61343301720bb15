//! Draws traces: SVG, PNG, interactive HTML, Perfetto JSON, text.
