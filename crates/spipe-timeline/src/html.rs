/// x
pub fn html(_: &crate::Picture) -> String {
    String::new()
}
