use jiff::Timestamp;

use super::area::area;

area! {
    /// What processes of a bay asked for themselves, and has no event in another area.
    Inside: InsideEvent;

    /// The bay is to be kept awake.
    HoldTaken(HoldTaken) = "hold.taken" {
        /// Until when.
        until: Option<Timestamp>,
        /// Who asked.
        by: String,
    }

    /// The bay need not be kept awake any more.
    HoldReleased(HoldReleased) = "hold.released" {
        /// Who asked.
        by: String,
    }

    /// There were more changes from inside than have events of their own.
    LeftOut(InsideLeftOut) = "inside.left-out" {
        /// How many.
        count: u64,
        /// Within how many seconds.
        within_s: u64,
        /// Why they have none, if not because there were many.
        why: Option<String>,
        /// Who asked.
        by: String,
    }
}
