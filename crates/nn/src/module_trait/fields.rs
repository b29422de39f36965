//! Implementations of [`Module`] for settings, containers and tuples, so that they can be fields of modules.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use warpline::DType;

use super::{Module, Visitor, VisitorMut};

/// Implements [`Module`] for settings, which have no members.
macro_rules! settings {
    ($($ty:ty),*) => {$(
        impl Module for $ty {
            fn visit(&self, _: &mut Visitor<'_>) {}
            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }
    )*};
}

settings!(
    (),
    bool,
    char,
    u8,
    i32,
    u32,
    i64,
    u64,
    isize,
    usize,
    f32,
    f64,
    String,
    &'static str,
    DType,
    warpline::Device
);

impl<T> Module for PhantomData<T> {
    fn visit(&self, _: &mut Visitor<'_>) {}
    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

/// An optional module, such as a bias. `None` has no members.
impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        if let Some(module) = self {
            module.visit_mut(visitor);
        }
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        (**self).visit_mut(visitor);
    }
}

/// `torch.nn.ModuleList` and `ParameterList`: the name of a member is its index.
impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }
}

/// `torch.nn.ModuleDict` and `ParameterDict`: the name of a member is its key. Members are in the order of the keys.
impl<M: Module> Module for BTreeMap<String, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().for_each(|(name, module)| visitor.member(name, module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().for_each(|(name, module)| visitor.member(name, module));
    }
}

macro_rules! tuples {
    ($($name:ident $i:tt),*) => {
        impl<$($name: Module),*> Module for ($($name,)*) {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(visitor.member(stringify!($i), &self.$i);)*
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                $(visitor.member(stringify!($i), &mut self.$i);)*
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
