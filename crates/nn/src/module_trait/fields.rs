//! Implementations of [`Module`] for settings, containers and tuples, so that they can be fields of modules.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use warpline::DType;

use super::tree::LIST;
use super::{Module, Visitor, VisitorMut};

/// Implements [`Module`] for settings, which have no members.
macro_rules! settings {
    ($([$($generic:tt)*] $ty:ty),*) => {$(
        impl<$($generic)*> Module for $ty {
            fn visit<'m>(&'m self, _: &mut Visitor<'m, '_>) {}
            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

            fn as_module(&self) -> Option<&dyn Module> {
                None
            }

            fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
                None
            }

            fn is_setting() -> bool {
                true
            }
        }
    )*};
}

settings!(
    [] (),
    [] bool,
    [] char,
    [] u8,
    [] i32,
    [] u32,
    [] i64,
    [] u64,
    [] isize,
    [] usize,
    [] f32,
    [] f64,
    [] String,
    [] &'static str,
    [] DType,
    [] warpline::Device,
    [T: 'static] PhantomData<T>
);

/// An optional module, such as a bias. `None` has no members.
impl<M: Module> Module for Option<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        if let Some(module) = self {
            module.visit_mut(visitor);
        }
    }

    fn as_module(&self) -> Option<&dyn Module> {
        self.as_ref()?.as_module()
    }

    fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
        self.as_mut()?.as_module_mut()
    }

    fn is_setting() -> bool {
        M::is_setting()
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        (**self).visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        (**self).visit_mut(visitor);
    }

    fn as_module(&self) -> Option<&dyn Module> {
        (**self).as_module()
    }

    fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
        (**self).as_module_mut()
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn extra_repr(&self) -> String {
        (**self).extra_repr()
    }
}

/// Implements the methods of a container, which is a setting if its elements are settings.
macro_rules! container {
    ($name:expr, $($element:ident)*) => {
        fn as_module(&self) -> Option<&dyn Module> {
            (!Self::is_setting()).then_some(self as &dyn Module)
        }

        fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
            (!Self::is_setting()).then_some(self as &mut dyn Module)
        }

        fn is_setting() -> bool {
            $($element::is_setting())&&*
        }

        fn type_name(&self) -> &'static str {
            $name
        }
    };
}

/// `torch.nn.ModuleList` and `ParameterList`: the name of a member is its index.
impl<M: Module> Module for Vec<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }

    container!(LIST, M);
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().enumerate().for_each(|(i, module)| visitor.member(&i.to_string(), module));
    }

    container!(LIST, M);
}

/// `torch.nn.ModuleDict` and `ParameterDict`: the name of a member is its key. Members are in the order of the keys.
impl<M: Module> Module for BTreeMap<String, M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        self.iter().for_each(|(name, module)| visitor.member(name, module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().for_each(|(name, module)| visitor.member(name, module));
    }

    container!("ModuleDict", M);
}

macro_rules! tuples {
    ($($name:ident $i:tt),*) => {
        impl<$($name: Module),*> Module for ($($name,)*) {
            fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
                $(visitor.member(stringify!($i), &self.$i);)*
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                $(visitor.member(stringify!($i), &mut self.$i);)*
            }

            container!(LIST, $($name)*);
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
