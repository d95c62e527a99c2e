//! A macro that defines `as_str`, `FromStr` and `Display` of an enum from one list of texts.

macro_rules! text_enum {
    ($ty:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        impl $ty {
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( $ty::$variant => $text, )* }
            }
        }
        impl std::str::FromStr for $ty {
            type Err = crate::id::ParseIdError;
            fn from_str(given: &str) -> Result<Self, Self::Err> {
                match given {
                    $( $text => Ok($ty::$variant), )*
                    _ => Err(crate::id::ParseIdError {
                        kind: stringify!($ty), given: given.to_owned(), why: concat!("the words are" $(, " `", $text, "`")*),
                    }),
                }
            }
        }
        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use text_enum;
