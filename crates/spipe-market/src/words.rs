//! The words of catalogue files: families, mountings, kinds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! kebab_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Every value, in the order of reports.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word in files and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

kebab_enum! {
    /// The family of a GPU: cards that share ratios of rates, and sizes of memory.
    Family {
        /// GeForce RTX 30: bf16 is twice the vector rate.
        Geforce30 = "geforce-30",
        /// GeForce RTX 40: bf16 is twice the vector rate.
        Geforce40 = "geforce-40",
        /// GeForce RTX 50: bf16 is twice the vector rate.
        Geforce50 = "geforce-50",
        /// RTX A4000 to A6000: bf16 is four times the vector rate.
        RtxAmpere = "rtx-ampere",
        /// RTX Ada workstation cards.
        RtxAda = "rtx-ada",
        /// RTX PRO Blackwell workstation cards.
        RtxPro = "rtx-pro",
        /// Turing cards of servers (T4).
        TuringServer = "turing-server",
        /// V100.
        Volta = "volta",
        /// Ampere cards of servers with GDDR6 (A10, A40).
        AmpereServer = "ampere-server",
        /// Ampere with HBM (A30, A100).
        AmpereHbm = "ampere-hbm",
        /// Ada cards of servers (L4, L40S).
        AdaServer = "ada-server",
        /// L40, whose tensor cores run at half rate.
        AdaHalf = "ada-half",
        /// H100, H200 and GH200.
        Hopper = "hopper",
        /// B200.
        BlackwellServer = "blackwell-server",
        /// Instinct MI200.
        Cdna2 = "cdna2",
        /// Instinct MI300.
        Cdna3 = "cdna3",
        /// Radeon RX 7000.
        Radeon7000 = "radeon-7000",
        /// Data Center GPU Max.
        PonteVecchio = "ponte-vecchio",
        /// Gaudi.
        Gaudi = "gaudi",
        /// Arc Pro.
        ArcPro = "arc-pro",
        /// Any other: no ratio and no size is known.
        Other = "other",
    }
}

kebab_enum! {
    /// How a GPU is mounted.
    Form {
        /// A card in a PCIe slot.
        Pcie = "pcie",
        /// An SXM module on a board of four or eight.
        Sxm = "sxm",
        /// An OAM module on a board of four or eight.
        Oam = "oam",
        /// Soldered beside its CPU.
        Superchip = "superchip",
    }
}

kebab_enum! {
    /// The class of a CPU.
    PlatformForm {
        /// At most two GPUs, which share sixteen lanes.
        Desktop = "desktop",
        /// One socket with many lanes.
        Workstation = "workstation",
        /// One or two sockets.
        Server = "server",
        /// Soldered beside its GPU.
        Superchip = "superchip",
    }
}

kebab_enum! {
    /// The kind of memory modules; kinds do not mix.
    DramKind {
        /// Unbuffered DDR4.
        Ddr4Udimm = "ddr4-udimm",
        /// Registered DDR4.
        Ddr4Rdimm = "ddr4-rdimm",
        /// Unbuffered DDR5.
        Ddr5Udimm = "ddr5-udimm",
        /// Registered DDR5.
        Ddr5Rdimm = "ddr5-rdimm",
        /// Soldered LPDDR5X.
        Lpddr5x = "lpddr5x",
    }
}

kebab_enum! {
    /// How the modules of a board are joined.
    Fabric {
        /// Every module has its full rate to every other one, through switches.
        Switch = "switch",
        /// Every pair has its own link; a module's rate is shared evenly among them.
        Mesh = "mesh",
    }
}

kebab_enum! {
    /// Whose price a rented machine has.
    RentKind {
        /// The price list of a provider.
        List = "list",
        /// Capacity that the provider may take back at any time.
        Spot = "spot",
        /// Offers of many owners.
        Marketplace = "marketplace",
    }
}

kebab_enum! {
    /// The unit of a rent.
    Per {
        /// One GPU of the machine.
        Gpu = "gpu",
        /// The whole machine.
        Machine = "machine",
    }
}

kebab_enum! {
    /// The kind of a network between computers; kinds do not mix.
    NetworkKind {
        /// InfiniBand.
        Infiniband = "infiniband",
        /// Ethernet, whose cards copy between memories by RoCE.
        Ethernet = "ethernet",
    }
}
