//! The errors of drawing.

/// The error of a picture that cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The embedded fonts are damaged.
    #[error("cannot read the font of the pictures")]
    Font,
    /// The drawing library failed.
    #[error("cannot draw: {message}")]
    Drawing {
        /// The library's message.
        message: String,
    },
    /// The pixels could not be encoded.
    #[error("cannot encode the picture as PNG: {0}")]
    Encoding(#[from] png::EncodingError),
}
