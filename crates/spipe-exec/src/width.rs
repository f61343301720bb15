//! Functions compiled once for each width of vectors.

/// Defines functions whose loops are compiled for the vectors of every x86-64 as well as for AVX2 and AVX-512, and that choose
/// when they are called. The result is the same to the last bit: the compiler neither reorders nor fuses float arithmetic, so
/// wider vectors only carry more of the same operations. What such a function calls must be `#[inline(always)]`.
macro_rules! for_each_width {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident$(<$($generic:ident: $bound:ident),+>)?($($argument:ident: $type:ty),* $(,)?) $body:block
    )+) => { $(
        $(#[$attribute])*
        $visibility fn $name$(<$($generic: $bound),+>)?($($argument: $type),*) {
            #[inline(always)]
            fn body$(<$($generic: $bound),+>)?($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma")]
                fn with_avx512$(<$($generic: $bound),+>)?($($argument: $type),*) {
                    body($($argument),*);
                }
                #[target_feature(enable = "avx2,f16c,fma")]
                fn with_avx2$(<$($generic: $bound),+>)?($($argument: $type),*) {
                    body($($argument),*);
                }
                if $crate::width::has_avx512() {
                    // SAFETY: the features were found.
                    #[expect(unsafe_code, reason = "a function for processors that have the features")]
                    unsafe {
                        with_avx512($($argument),*);
                    }
                    return;
                }
                if $crate::width::has_avx2() {
                    // SAFETY: the features were found.
                    #[expect(unsafe_code, reason = "a function for processors that have the features")]
                    unsafe {
                        with_avx2($($argument),*);
                    }
                    return;
                }
            }
            body($($argument),*);
        }
    )+ };
}

pub(crate) use for_each_width;

/// Whether the processor has what the 512-bit form needs. The answer is looked up once per process by the standard library.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether the processor has what the 256-bit form needs.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") && is_x86_feature_detected!("fma")
}
